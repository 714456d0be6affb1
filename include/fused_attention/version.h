// The version of the library. The build and the Python package read it from these three lines.
#pragma once

#define FUSED_ATTENTION_VERSION_MAJOR 0
#define FUSED_ATTENTION_VERSION_MINOR 1
#define FUSED_ATTENTION_VERSION_PATCH 0
