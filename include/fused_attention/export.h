// Everything else in the library is hidden: two copies of it in one process must not mix.
#pragma once

#define FUSED_ATTENTION_API __attribute__((visibility("default")))
