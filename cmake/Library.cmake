include(KeepRegistration)

# The operator library: the kernels, and every other file of csrc, which are the ones that include torch.
file(
  GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/csrc/*.cpp)
list(FILTER sources EXCLUDE REGEX "^csrc/cpu/(kernels/.*|isa\\.cpp|run\\.cpp)$")
# One of the two stands at key CUDA.
if(FUSED_ATTENTION_CUDA)
  include(CudaKernels)
  list(FILTER sources EXCLUDE REGEX "^csrc/cuda/attention_cuda_missing\\.cpp$")
else()
  list(FILTER sources EXCLUDE REGEX "^csrc/cuda/(attention_cuda|current_stream|run)\\.cpp$")
endif()
list(TRANSFORM sources PREPEND "${PROJECT_SOURCE_DIR}/")

add_library(fused_attention_torch OBJECT ${sources})
target_link_libraries(fused_attention_torch PRIVATE TorchLite::torch fused_attention_kernel_flags)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC warns about torch's compiled_autograd.h where it is inlined, although it is a system header.
  target_compile_options(fused_attention_torch PRIVATE -Wno-maybe-uninitialized)
endif()
set(library_objects $<TARGET_OBJECTS:fused_attention_torch> $<TARGET_OBJECTS:fused_attention_run>
                    ${FUSED_ATTENTION_KERNEL_OBJECTS})
if(FUSED_ATTENTION_CUDA)
  target_compile_definitions(fused_attention_torch PRIVATE FUSED_ATTENTION_WITH_CUDA)
  list(APPEND library_objects $<TARGET_OBJECTS:fused_attention_cuda_kernels>)
endif()

add_library(fused_attention SHARED ${library_objects})
# torch keeps pointers into the library (kernels, schemas) until the process ends: never unmap it.
target_link_options(fused_attention PRIVATE LINKER:-z,nodelete)
# As a wheel the library lies in fused_attention/lib, beside the torch folder. The path of the torch it was
# built with serves every other prefix: RUNPATH is not transitive, so programs cannot supply it.
# INSTALL_RPATH_USE_LINK_PATH would leave that path out where the environment is inside the sources.
set_target_properties(fused_attention PROPERTIES INSTALL_RPATH
                                                 "$ORIGIN/../../torch/lib;${TorchLite_ROOT}/lib")
set(library_targets fused_attention)
if(FUSED_ATTENTION_STATIC)
  add_library(fused_attention_static STATIC ${library_objects})
  target_link_libraries(fused_attention_static PUBLIC TorchLite::openmp)
  list(APPEND library_targets fused_attention_static)
endif()
foreach(target IN LISTS library_targets)
  target_link_libraries(${target} PUBLIC TorchLite::torch)
  if(FUSED_ATTENTION_CUDA)
    # The static runtime: nothing to find when the library is loaded, also before or without torch's.
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  fused_attention_keep_registration(${target})
  add_library(fused_attention::${target} ALIAS ${target})
endforeach()
add_custom_target(fused_attention_library DEPENDS ${library_targets})
