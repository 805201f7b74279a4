# SPDX-License-Identifier: BSD-3-Clause
message(FATAL_ERROR "loaded a libtorch of another version")
