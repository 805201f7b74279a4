// SPDX-License-Identifier: BSD-3-Clause
// An error as bytes, so that another process throws it with the same type and text.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep {

// Keeps the type if it is one of error.h; a type that derives from one of these becomes that one,
// and any other exception becomes a BackendError with its first line.
std::string pack_error(const std::exception& error);
// BackendError if the bytes are not a packed error.
std::exception_ptr unpack_error(std::string_view bytes);

}  // namespace lockstep
