// SPDX-License-Identifier: BSD-3-Clause
// Decodes JPEG and PNG files, each if its library is built in (cmake/LockstepImages.cmake).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep {

// The file is not a whole JPEG or PNG image, or is larger than the limits. The message names it.
class DamagedImage : public ErrorType<DamagedImage, UsageError> {
 public:
  DamagedImage(const std::string& name, const std::string& fault)
      : ErrorType(name + ": " + fault) {}
};

// A file that says that it has more pixels is refused before memory is allocated for them.
constexpr std::int64_t kMostImagePixels = 100'000'000;

// Whether the name ends like a JPEG or PNG file's: .jpg, .jpeg or .png, in upper or lower case.
bool has_image_name(const std::filesystem::path& path);

// Returns red, green and blue as uint8 [H, W, 3]. The format follows from the content. Grey images
// and palettes become colours, 16 bits become 8, and transparency is dropped; EXIF (orientation)
// and colour profiles are ignored. Safe for hostile bytes. DamagedImage, with `name`; BackendError
// if the format's library is not built in.
at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name);

// The same for a file. UsageError, naming it, if it cannot be read.
at::Tensor read_image(const std::filesystem::path& path);

// The decoders; each is defined if its library is built in.
at::Tensor decode_jpeg(std::span<const std::byte> bytes, const std::string& name);
at::Tensor decode_png(std::span<const std::byte> bytes, const std::string& name);

// For the decoders: DamagedImage if the image has no pixels or too many.
void require_image_size(std::int64_t height, std::int64_t width, const std::string& name);

}  // namespace lockstep
