# The kernels: ISA detection, csrc/cpu/kernels/kernels.cpp compiled once per ISA (kernels_bf16.cpp for
# the one that only has other products of bf16), and the driver.
#
# Only the ISA objects get ISA flags. Everything else is compiled for the plain target, so that nothing
# outside them can need more than the oldest CPU has.
set(FUSED_ATTENTION_ISAS generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND FUSED_ATTENTION_ISAS avx2 avx512)
endif()
set(FUSED_ATTENTION_PAIRED_ISAS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(FUSED_ATTENTION_PAIRED_ISAS avx512_bf16)
endif()
set(isa_flags_generic "")
set(isa_flags_avx2 -mavx2 -mfma -mf16c)
set(isa_flags_avx512
    -mavx512f -mavx512bw -mavx512vl -mavx512dq ${isa_flags_avx2} -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's avx512fintrin.h warns about itself (GCC bug 105593); the same source is checked as avx2.
  list(APPEND isa_flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

set(isa_flags_avx512_bf16 ${isa_flags_avx512} -mavx512bf16)

# The kernels are one large inlined body: with sanitizers -O3 takes minutes to compile.
set(isa_optimisation $<$<NOT:$<CONFIG:Debug>>:-O3>)
if(FUSED_ATTENTION_SANITIZE)
  set(isa_optimisation -O1)
endif()

# What every user of the kernels compiles with: their headers, and which ISAs this build holds.
add_library(fused_attention_kernel_flags INTERFACE)
target_include_directories(
  fused_attention_kernel_flags INTERFACE ${PROJECT_SOURCE_DIR}/csrc ${PROJECT_SOURCE_DIR}/include)
add_library(fused_attention_isa OBJECT csrc/cpu/isa.cpp)
target_link_libraries(fused_attention_isa PRIVATE fused_attention_kernel_flags)

# Compiles `source` once for each of the ISAs, as the kernels are, and adds the objects to the list
# `objects`.
function(fused_attention_add_isa_objects name source objects)
  foreach(isa IN LISTS ARGN)
    string(TOUPPER ${isa} upper)
    add_library(${name}_${isa} OBJECT ${source})
    target_compile_definitions(${name}_${isa} PRIVATE FUSED_ATTENTION_ISA_${upper})
    target_compile_options(${name}_${isa} PRIVATE ${isa_flags_${isa}} -ffp-contract=fast
                                                  ${isa_optimisation})
    list(APPEND ${objects} $<TARGET_OBJECTS:${name}_${isa}>)
  endforeach()
  set(${objects} ${${objects}} PARENT_SCOPE)
endfunction()

# What links the kernels takes them as objects: nothing is dropped, and nothing is compiled twice.
set(FUSED_ATTENTION_KERNEL_OBJECTS $<TARGET_OBJECTS:fused_attention_isa>)
fused_attention_add_isa_objects(fused_attention_isa csrc/cpu/kernels/kernels.cpp
                                FUSED_ATTENTION_KERNEL_OBJECTS ${FUSED_ATTENTION_ISAS})
fused_attention_add_isa_objects(fused_attention_isa csrc/cpu/kernels/kernels_bf16.cpp
                                FUSED_ATTENTION_KERNEL_OBJECTS ${FUSED_ATTENTION_PAIRED_ISAS})
foreach(isa IN LISTS FUSED_ATTENTION_ISAS FUSED_ATTENTION_PAIRED_ISAS)
  string(TOUPPER ${isa} upper)
  target_compile_definitions(fused_attention_kernel_flags INTERFACE FUSED_ATTENTION_HAS_${upper})
endforeach()

# The driver, the one file with threads. at::parallel_for is a header template that runs serially
# without -fopenmp. The flag is given at compile time only: the GOMP_ symbols then come from the OpenMP
# runtime that torch loads, never from a second one.
# Without torch (sanitizer builds) a std::thread stand-in for its header takes torch's place.
add_library(fused_attention_run OBJECT csrc/cpu/run.cpp)
target_link_libraries(fused_attention_run PRIVATE fused_attention_kernel_flags)
add_library(fused_attention_threads INTERFACE)
if(FUSED_ATTENTION_WITH_TORCH)
  target_link_libraries(fused_attention_run PRIVATE TorchLite::torch)
  target_compile_options(fused_attention_run PRIVATE -fopenmp)
  target_link_libraries(fused_attention_threads INTERFACE TorchLite::torch TorchLite::openmp)
else()
  find_package(Threads REQUIRED)
  target_include_directories(fused_attention_threads
                             INTERFACE ${PROJECT_SOURCE_DIR}/test/cpp/torch_stand_in)
  target_link_libraries(fused_attention_threads INTERFACE Threads::Threads)
  target_link_libraries(fused_attention_run PRIVATE fused_attention_threads)
endif()
