# Finds the LibTorch inside a Python's torch, or an unpacked LibTorch, without running torch.
#
# find_package(Torch) is not used: for a CUDA build of torch it is a fatal error on a machine without
# the CUDA toolkit, and it drags in every library of the wheel. This module needs torch_cpu and c10 only.
#
# Where it looks, first hit wins:
#   1. TORCH_ROOT (variable or environment): a folder with include/ and lib/
#   2. TorchLite_SIBLING: a torch folder beside an installed fused_attention package (set by our config)
#   3. the torch of Python_EXECUTABLE, else of $VIRTUAL_ENV, else of python3 on the PATH
#   4. TorchLite_FALLBACK: the torch that an installed package was built with (set by our config)
#
# Result: TorchLite_FOUND, TorchLite_VERSION (from the headers), TorchLite_ROOT, TorchLite_HAS_CUDA (is it
# a CUDA build of torch; no toolkit is needed for that), TorchLite_CUDA_VERSION (of a wheel), and the targets TorchLite::torch and
# TorchLite::openmp (torch's own OpenMP runtime, for what is linked into an executable).
include_guard(DIRECTORY)

function(_torch_lite_is_root dir result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${dir}/include/torch/headeronly/version.h" AND EXISTS "${dir}/lib/libtorch_cpu.so")
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# importlib's find_spec locates the folder without importing torch, which takes seconds.
function(_torch_lite_ask_python result looked)
  set(${result} "" PARENT_SCOPE)
  if(Python_EXECUTABLE)
    set(python "${Python_EXECUTABLE}")
  elseif(DEFINED ENV{VIRTUAL_ENV})
    set(python "$ENV{VIRTUAL_ENV}/bin/python")
  else()
    find_program(TorchLite_PYTHON NAMES python3 python NO_CACHE)
    set(python "${TorchLite_PYTHON}")
  endif()
  set(${looked} "${python}" PARENT_SCOPE)
  if(NOT python)
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c
            "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
    OUTPUT_VARIABLE root
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

set(TorchLite_ROOT "")
set(_torch_lite_looked "")
if(NOT TORCH_ROOT AND DEFINED ENV{TORCH_ROOT})
  set(TORCH_ROOT "$ENV{TORCH_ROOT}")
endif()
if(TORCH_ROOT)
  set(_torch_lite_candidates "${TORCH_ROOT}")
  set(_torch_lite_looked "TORCH_ROOT=${TORCH_ROOT}")
else()
  _torch_lite_ask_python(_torch_lite_from_python _torch_lite_python)
  set(_torch_lite_candidates ${TorchLite_SIBLING} ${_torch_lite_from_python} ${TorchLite_FALLBACK})
  set(_torch_lite_looked "the Python ${_torch_lite_python}")
endif()
foreach(_torch_lite_dir IN LISTS _torch_lite_candidates)
  _torch_lite_is_root("${_torch_lite_dir}" _torch_lite_ok)
  if(_torch_lite_ok)
    get_filename_component(TorchLite_ROOT "${_torch_lite_dir}" REALPATH)
    break()
  endif()
endforeach()

if(TorchLite_ROOT)
  file(STRINGS "${TorchLite_ROOT}/include/torch/headeronly/version.h" _torch_lite_lines
       REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^;]*(MAJOR|MINOR|PATCH) +([0-9]+)[^;]*" "\\2" _torch_lite_parts
                       "${_torch_lite_lines}")
  list(JOIN _torch_lite_parts "." TorchLite_VERSION)
  set(TorchLite_HAS_CUDA FALSE)
  set(TorchLite_CUDA_VERSION "")
  if(EXISTS "${TorchLite_ROOT}/lib/libtorch_cuda.so")
    set(TorchLite_HAS_CUDA TRUE)
    if(EXISTS "${TorchLite_ROOT}/version.py")
      file(STRINGS "${TorchLite_ROOT}/version.py" _torch_lite_line REGEX "^cuda.*= *'[0-9.]+'")
      string(REGEX MATCH "[0-9]+\\.[0-9]+" TorchLite_CUDA_VERSION "${_torch_lite_line}")
    endif()
  endif()
endif()

set(_torch_lite_reason "")
if(NOT TorchLite_ROOT)
  set(_torch_lite_reason "No torch in ${_torch_lite_looked}. ")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchLite
  REQUIRED_VARS TorchLite_ROOT
  VERSION_VAR TorchLite_VERSION
  REASON_FAILURE_MESSAGE
    "${_torch_lite_reason}Install one (pip install 'torch>=2.11'), or point at another: \
-DPython_EXECUTABLE=<python> or -DTORCH_ROOT=<folder with include/ and lib/>. From pip, build with \
--no-build-isolation: an isolated build does not see the torch that is installed.")

if(TorchLite_FOUND AND NOT TARGET TorchLite::torch)
  foreach(_torch_lite_name IN ITEMS c10 torch_cpu)
    add_library(TorchLite::${_torch_lite_name} SHARED IMPORTED)
    set_target_properties(
      TorchLite::${_torch_lite_name} PROPERTIES IMPORTED_LOCATION
                                                "${TorchLite_ROOT}/lib/lib${_torch_lite_name}.so")
  endforeach()
  add_library(TorchLite::torch INTERFACE IMPORTED)
  target_include_directories(
    TorchLite::torch SYSTEM INTERFACE "${TorchLite_ROOT}/include"
                                      "${TorchLite_ROOT}/include/torch/csrc/api/include")
  target_link_libraries(TorchLite::torch INTERFACE TorchLite::torch_cpu TorchLite::c10)
  target_compile_features(TorchLite::torch INTERFACE cxx_std_20)

  # A second OpenMP runtime in the process would start a second thread pool, so whoever needs the
  # GOMP_ symbols at link time gets the library that torch itself loads.
  add_library(TorchLite::openmp INTERFACE IMPORTED)
  file(GLOB _torch_lite_gomp "${TorchLite_ROOT}/lib/libgomp*.so*")
  if(_torch_lite_gomp)
    list(GET _torch_lite_gomp 0 _torch_lite_gomp)
    target_link_libraries(TorchLite::openmp INTERFACE "${_torch_lite_gomp}")
  else()
    target_link_libraries(TorchLite::openmp INTERFACE gomp)
  endif()
endif()
