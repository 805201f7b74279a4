// SPDX-License-Identifier: BSD-3-Clause
// Finds out an image's format and calls its decoder.
#include "lockstep/data/image_file.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lockstep/built_with.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostImageBytes = std::size_t{1} << 30;
constexpr std::string_view kJpegSignature = "\xff\xd8\xff";
constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

[[noreturn]] void throw_not_built_in(const std::string& name, const char* format,
                                     const char* library, const char* package) {
  throw BackendError(
      fmt::format("{}: this is a {} image, and Lockstep was built without {}; install the package "
                  "{}, and configure and build Lockstep again with LOCKSTEP_WITH_IMAGES=ON",
                  name, format, library, package));
}

}  // namespace

bool has_image_name(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

void require_image_size(std::int64_t height, std::int64_t width, const std::string& name) {
  if (height > 0 && width > 0 && height <= kMostImagePixels / width) return;
  throw DamagedImage(
      name, fmt::format("its header says {} x {} pixels; images of 1 to {} pixels are read", width,
                        height, kMostImagePixels));
}

at::Tensor decode_image(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kJpegSignature)) {
    if constexpr (built_with::jpeg) return decode_jpeg(bytes, name);
    throw_not_built_in(name, "JPEG", "libjpeg", "libjpeg-dev");
  }
  if (text.starts_with(kPngSignature)) {
    if constexpr (built_with::png) return decode_png(bytes, name);
    throw_not_built_in(name, "PNG", "libpng", "libpng-dev");
  }
  throw DamagedImage(name,
                     text.empty() ? "the file is empty" : "this is neither a JPEG nor a PNG image");
}

at::Tensor read_image(const std::filesystem::path& path) {
  const StoredBytes file = bytes_in_file(path);
  if (file.size > kMostImageBytes) {
    throw DamagedImage(path.string(), fmt::format("it has {} bytes; images of up to {} are read",
                                                  file.size, kMostImageBytes));
  }
  std::vector<std::byte> bytes(file.size);
  file.read(0, bytes);
  return decode_image(bytes, path.string());
}

}  // namespace lockstep
