// SPDX-License-Identifier: BSD-3-Clause
// Decodes JPEG with libjpeg, which reports errors by a longjmp.
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <ATen/ops/empty.h>
// After <cstdio>, which it needs.
#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

#include "lockstep/data/image_file.h"

namespace lockstep {
namespace {

// A progressive image of a few hundred bytes can have so many scans that it takes minutes; real
// ones have about ten.
constexpr int kMostScans = 100;

// libjpeg's error manager comes first, so that its pointer is one to the whole.
struct JpegFailure {
  jpeg_error_mgr manager{};
  std::jmp_buf escape{};
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void leave_libjpeg(j_common_ptr info) {
  auto* failure = reinterpret_cast<JpegFailure*>(info->err);
  failure->manager.format_message(info, failure->message);
  std::longjmp(failure->escape, 1);
}

// Warnings (level -1) say that data is missing or makes no sense, and that libjpeg guesses. A few
// are harmless.
void leave_unless_harmless(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM ||
      code == JWRN_JFIF_MAJOR) {
    return;
  }
  leave_libjpeg(info);
}

void limit_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* failure = reinterpret_cast<JpegFailure*>(info->err);
  std::snprintf(failure->message, sizeof failure->message, "more than %d scans", kMostScans);
  std::longjmp(failure->escape, 1);
}

// 255 means no ink. Adobe's programs, which write nearly all such files, store it so; others
// store the reverse.
void to_rgb(const std::vector<JSAMPLE>& cmyk, bool is_adobe, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < cmyk.size(); i += 4) {
    const int black = is_adobe ? cmyk[i + 3] : 255 - cmyk[i + 3];
    for (std::size_t ink = 0; ink < 3; ++ink) {
      const int light = is_adobe ? cmyk[i + ink] : 255 - cmyk[i + ink];
      *rgb++ = static_cast<std::uint8_t>(light * black / 255);
    }
  }
}

class JpegDecoder {
 public:
  JpegDecoder(std::span<const std::byte> bytes, const std::string& name) : name_(name) {
    info_.err = ::jpeg_std_error(&failure_.manager);
    failure_.manager.error_exit = leave_libjpeg;
    failure_.manager.emit_message = leave_unless_harmless;
    call([&] {
      jpeg_create_decompress(&info_);
      ::jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    });
    progress_.progress_monitor = limit_scans;
    info_.progress = &progress_;
  }
  ~JpegDecoder() { ::jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  at::Tensor decode() {
    call([&] { ::jpeg_read_header(&info_, TRUE); });
    const auto height = static_cast<std::int64_t>(info_.image_height);
    const auto width = static_cast<std::int64_t>(info_.image_width);
    require_image_size(height, width, name_);
    const bool is_cmyk = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    call([&] { ::jpeg_start_decompress(&info_); });
    at::Tensor image = at::empty({height, width, 3}, at::kByte);
    auto* row = image.data_ptr<std::uint8_t>();
    std::vector<JSAMPLE> inks(is_cmyk ? static_cast<std::size_t>(width) * 4 : 0);
    for (std::int64_t i = 0; i < height; ++i, row += width * 3) {
      read_row(is_cmyk ? inks.data() : row);
      if (is_cmyk) to_rgb(inks, info_.saw_Adobe_marker != 0, row);
    }
    call([&] { ::jpeg_finish_decompress(&info_); });
    return image;
  }

 private:
  // libjpeg's error leaves `calls` by a longjmp: neither it nor what it calls may have an object
  // with a destructor.
  template <class Calls>
  void call(const Calls& calls) {
    if (setjmp(failure_.escape) != 0) {
      throw DamagedImage(name_, std::string("the JPEG image is damaged (") + failure_.message +
                                    "); copy or download the file again");
    }
    calls();
  }

  void read_row(JSAMPLE* row) {
    call([&] { ::jpeg_read_scanlines(&info_, &row, 1); });
  }

  const std::string& name_;
  jpeg_decompress_struct info_{};
  JpegFailure failure_;
  jpeg_progress_mgr progress_{};
};

}  // namespace

at::Tensor decode_jpeg(std::span<const std::byte> bytes, const std::string& name) {
  return JpegDecoder(bytes, name).decode();
}

}  // namespace lockstep
