# SPDX-License-Identifier: BSD-3-Clause
# Stands for a libtorch that Lockstep was not built with, and must not be loaded.
message(FATAL_ERROR "loaded a libtorch of another version")
