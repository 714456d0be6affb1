# The CUDA kernels: one .cu file for each dtype, so that they compile side by side. They include no torch.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/cuda/*.cu)
add_library(fused_attention_cuda_kernels OBJECT ${cuda_sources})
target_include_directories(fused_attention_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
set_target_properties(
  fused_attention_cuda_kernels
  PROPERTIES CUDA_STANDARD 20
             CUDA_STANDARD_REQUIRED ON
             CUDA_EXTENSIONS OFF
             CUDA_VISIBILITY_PRESET hidden)
