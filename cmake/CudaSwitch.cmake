# Decides whether CUDA kernels are built, from USE_CUDA=auto|0|1 (variable, else environment).
#
# auto means: when a toolkit is there and torch is a CUDA build. Never when a GPU is there, so that a build
# machine without one makes the same library.
#
# This version has no CUDA kernels: the decision is made and printed, and calls with CUDA tensors reach
# csrc/cuda/attention_cuda_missing.cpp, which says how to go on.
if(NOT DEFINED USE_CUDA)
  set(USE_CUDA auto)
  if(NOT "$ENV{USE_CUDA}" STREQUAL "")
    set(USE_CUDA "$ENV{USE_CUDA}")
  endif()
endif()
string(TOLOWER "${USE_CUDA}" cuda_choice)

if(cuda_choice MATCHES "^(0|off|no|false)$")
  message(STATUS "CUDA kernels: no (USE_CUDA=${USE_CUDA})")
elseif(cuda_choice MATCHES "^(1|on|yes|true)$")
  message(
    FATAL_ERROR "USE_CUDA=${USE_CUDA} asks for CUDA kernels, but CUDA kernels are not part of "
                "fused_attention ${PROJECT_VERSION}. Build with USE_CUDA=auto or USE_CUDA=0.")
elseif(cuda_choice STREQUAL "auto")
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin NO_CACHE)
  if(NOT TorchLite_HAS_CUDA)
    set(cuda_reason "torch is a CPU build")
  elseif(NOT CMAKE_CUDA_COMPILER)
    set(cuda_reason "there is no CUDA toolkit")
  else()
    set(cuda_reason "torch is a CUDA build and ${CMAKE_CUDA_COMPILER} is there, but this version has none")
  endif()
  message(STATUS "CUDA kernels: no (USE_CUDA=auto: ${cuda_reason})")
else()
  message(FATAL_ERROR "USE_CUDA is auto, 0 or 1, but got '${USE_CUDA}'")
endif()
