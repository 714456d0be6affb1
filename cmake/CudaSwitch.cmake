# Decides whether CUDA kernels are built, from USE_CUDA=auto|0|1 (variable, else environment), and sets
# FUSED_ATTENTION_CUDA.
#
# auto means: when a toolkit is there that fits torch, and torch is a CUDA build. Never when a GPU is there,
# so that a build machine without one makes the same library.
if(NOT DEFINED USE_CUDA)
  set(USE_CUDA auto)
  if(NOT "$ENV{USE_CUDA}" STREQUAL "")
    set(USE_CUDA "$ENV{USE_CUDA}")
  endif()
endif()
string(TOLOWER "${USE_CUDA}" cuda_choice)

# Sets `result` to what keeps CUDA kernels from being built, or to nothing.
function(fused_attention_cuda_obstacle result)
  set(${result} "" PARENT_SCOPE)
  if(NOT TorchLite_HAS_CUDA)
    set(${result} "torch is a CPU build" PARENT_SCOPE)
    return()
  endif()
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin NO_CACHE)
  if(NOT CMAKE_CUDA_COMPILER)
    set(${result} "there is no CUDA toolkit" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)" _ "${nvcc_version}")
  set(nvcc_major "${CMAKE_MATCH_1}")
  if(NOT nvcc_major)
    set(${result} "${CMAKE_CUDA_COMPILER} does not work" PARENT_SCOPE)
  elseif(TorchLite_CUDA_VERSION AND NOT TorchLite_CUDA_VERSION MATCHES "^${nvcc_major}\\.")
    set(${result} "torch has CUDA ${TorchLite_CUDA_VERSION}, but ${CMAKE_CUDA_COMPILER} is of CUDA ${nvcc_major}"
        PARENT_SCOPE)
  endif()
  set(CMAKE_CUDA_COMPILER "${CMAKE_CUDA_COMPILER}" PARENT_SCOPE)
endfunction()

set(FUSED_ATTENTION_CUDA FALSE)
if(cuda_choice MATCHES "^(0|off|no|false)$")
  message(STATUS "CUDA kernels: no (USE_CUDA=${USE_CUDA})")
elseif(cuda_choice MATCHES "^(1|on|yes|true|auto)$")
  fused_attention_cuda_obstacle(cuda_obstacle)
  if(NOT cuda_obstacle)
    set(FUSED_ATTENTION_CUDA TRUE)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # 90: machine code and PTX, for what comes later
    endif()
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " cuda_architectures)
    message(STATUS "CUDA kernels: yes, for ${cuda_architectures} (${CMAKE_CUDA_COMPILER})")
  elseif(cuda_choice STREQUAL "auto")
    message(STATUS "CUDA kernels: no (USE_CUDA=auto: ${cuda_obstacle})")
  else()
    message(FATAL_ERROR "USE_CUDA=${USE_CUDA} asks for CUDA kernels, but ${cuda_obstacle}. "
                        "Build with USE_CUDA=auto or USE_CUDA=0.")
  endif()
else()
  message(FATAL_ERROR "USE_CUDA is auto, 0 or 1, but got '${USE_CUDA}'")
endif()
