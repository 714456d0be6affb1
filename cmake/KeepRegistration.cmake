# Makes the programs that link a target keep it whole.
#
# A program that looks the operators up by name refers to no symbol of the library, and a linker drops what
# nothing refers to: with --as-needed the shared library, always the objects of the static one. The
# operators would then not be registered.
function(fused_attention_keep_registration target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    set(how --whole-archive)
  else()
    set(how --no-as-needed)
  endif()
  # BUILD_INTERFACE: an exported target does not carry the option, the package config adds it again.
  target_link_options(
    ${target} INTERFACE
    "$<BUILD_INTERFACE:LINKER:--push-state,${how},$<TARGET_FILE:${target}>,--pop-state>")
endfunction()
