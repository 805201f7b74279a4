// SPDX-License-Identifier: BSD-3-Clause
// Makes JPEG and PNG files for tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>

namespace lockstep::testing {

// spectral: a progressive image of 3 channels in four scans, none of which refines another.
enum class JpegScans { baseline, progressive, spectral };

struct JpegKind {
  // 1 (grey), 3 (RGB) or 4 (CMYK, as Adobe's programs store it).
  int channels = 3;
  JpegScans scans = JpegScans::baseline;
};

// A smooth image: channel c of the pixel in row y and column x has the value 20 c + 2 x + y +
// offset.
inline std::string jpeg_bytes(int height, int width, JpegKind kind = {}, int offset = 0) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = kind.channels;
  info.in_color_space = kind.channels == 1   ? JCS_GRAYSCALE
                        : kind.channels == 3 ? JCS_RGB
                                             : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (kind.scans == JpegScans::progressive) jpeg_simple_progression(&info);
  const jpeg_scan_info spectral[] = {{3, {0, 1, 2}, 0, 0, 0, 0},
                                     {1, {0}, 1, 63, 0, 0},
                                     {1, {1}, 1, 63, 0, 0},
                                     {1, {2}, 1, 63, 0, 0}};
  if (kind.scans == JpegScans::spectral) {
    info.scan_info = spectral;
    info.num_scans = 4;
  }
  jpeg_start_compress(&info, TRUE);
  std::vector<JSAMPLE> row(static_cast<std::size_t>(width * kind.channels));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < kind.channels; ++c) {
        row[static_cast<std::size_t>(x * kind.channels + c)] =
            c == 3 ? 255 : static_cast<JSAMPLE>(20 * c + 2 * x + y + offset);
      }
    }
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string bytes(reinterpret_cast<char*>(memory), size);
  std::free(memory);
  return bytes;
}

struct PngKind {
  // PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE and so on.
  int color_type = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  bool interlaced = false;
};

// An image of these rows, whose bytes are as the kind stores them. With a palette, colour i is
// (i, 2 i, 3 i).
inline std::string png_bytes(int width, std::vector<std::string> rows, PngKind kind = {}) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string bytes;
  const auto write = [](png_structp writer, png_bytep data, std::size_t count) {
    static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<char*>(data), count);
  };
  png_set_write_fn(png, &bytes, write, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(rows.size()),
               kind.depth, kind.color_type,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < 4; ++i) {
    palette.push_back(
        {static_cast<png_byte>(i), static_cast<png_byte>(2 * i), static_cast<png_byte>(3 * i)});
  }
  if (kind.color_type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette.data(), 4);
  std::vector<png_bytep> pointers;
  for (std::string& row : rows) pointers.push_back(reinterpret_cast<png_bytep>(row.data()));
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

}  // namespace lockstep::testing
