// SPDX-License-Identifier: BSD-3-Clause
// Decodes PNG with libpng, which reports errors by a longjmp.
#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>

#include <ATen/ops/empty.h>
#include <png.h>

#include "lockstep/data/image_file.h"

namespace lockstep {
namespace {

// A chunk of text or of a colour profile, unpacked; the image itself is not limited by it.
constexpr png_alloc_size_t kMostChunkBytes = 8 << 20;

struct PngInput {
  std::span<const std::byte> rest;
  char message[128] = "";
};

[[noreturn]] void leave_libpng(png_structp png, png_const_charp message) {
  auto* input = static_cast<PngInput*>(::png_get_error_ptr(png));
  std::strncpy(input->message, message, sizeof input->message - 1);
  ::png_longjmp(png, 1);
}

// libpng warns of faults in what is not needed for the image.
void ignore_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep output, std::size_t count) {
  auto* input = static_cast<PngInput*>(::png_get_io_ptr(png));
  if (count > input->rest.size()) ::png_error(png, "the data ends early");
  std::memcpy(output, input->rest.data(), count);
  input->rest = input->rest.subspan(count);
}

class PngDecoder {
 public:
  PngDecoder(std::span<const std::byte> bytes, const std::string& name)
      : name_(name), input_{.rest = bytes} {
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, &input_, leave_libpng, ignore_warning);
    info_ = png_ == nullptr ? nullptr : ::png_create_info_struct(png_);
    if (info_ == nullptr) {
      ::png_destroy_read_struct(&png_, nullptr, nullptr);
      throw BackendError(name + ": libpng cannot start (out of memory?)");
    }
    ::png_set_read_fn(png_, &input_, read_png_bytes);
    ::png_set_user_limits(png_, static_cast<png_uint_32>(kMostImagePixels),
                          static_cast<png_uint_32>(kMostImagePixels));
    ::png_set_chunk_malloc_max(png_, kMostChunkBytes);
  }
  ~PngDecoder() { ::png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  at::Tensor decode() {
    call([&] { ::png_read_info(png_, info_); });
    const auto height = static_cast<std::int64_t>(::png_get_image_height(png_, info_));
    const auto width = static_cast<std::int64_t>(::png_get_image_width(png_, info_));
    require_image_size(height, width, name_);
    int passes = 0;
    call([&] { passes = convert_to_rgb(); });
    if (::png_get_rowbytes(png_, info_) != static_cast<std::size_t>(width) * 3) {
      throw DamagedImage(name_, "libpng does not convert its pixels to red, green and blue");
    }
    at::Tensor image = at::empty({height, width, 3}, at::kByte);
    auto* pixels = image.data_ptr<std::uint8_t>();
    call([&] {
      // An interlaced image has several passes, each of which completes the rows.
      for (int pass = 0; pass < passes; ++pass) {
        for (std::int64_t row = 0; row < height; ++row) {
          ::png_read_row(png_, pixels + row * width * 3, nullptr);
        }
      }
      ::png_read_end(png_, nullptr);
    });
    return image;
  }

 private:
  // libpng's error leaves `calls` by a longjmp: neither it nor what it calls may have an object
  // with a destructor.
  template <class Calls>
  void call(const Calls& calls) {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      throw DamagedImage(name_, std::string("the PNG image is damaged (") + input_.message +
                                    "); copy or download the file again");
    }
    calls();
  }

  int convert_to_rgb() {
    ::png_set_expand(png_);
    ::png_set_scale_16(png_);
    ::png_set_strip_alpha(png_);
    ::png_set_gray_to_rgb(png_);
    const int passes = ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    return passes;
  }

  const std::string& name_;
  PngInput input_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

at::Tensor decode_png(std::span<const std::byte> bytes, const std::string& name) {
  return PngDecoder(bytes, name).decode();
}

}  // namespace lockstep
