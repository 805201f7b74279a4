# SPDX-License-Identifier: BSD-3-Clause
# Stands for a libtorch that Lockstep was not built with.
set(PACKAGE_VERSION 9.8.7)
set(PACKAGE_VERSION_COMPATIBLE TRUE)
