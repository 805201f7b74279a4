// SPDX-License-Identifier: BSD-3-Clause
// The decoders with images of each kind, and with truncated, flipped, hostile and mutated ones.
#include "lockstep/data/image_file.h"

#include <random>

#include "data/idx_bytes.h"
#include "data/image_bytes.h"
#include "support/locations.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::as_bytes;
using ::testing::HasSubstr;
using testing::jpeg_bytes;
using testing::JpegScans;
using testing::png_bytes;
using ::testing::ThrowsMessage;

at::Tensor decode(const std::string& bytes) {
  return decode_image(as_bytes(bytes), "some.jpg");
}

void expect_damaged(const std::string& bytes, const std::string& text) {
  EXPECT_THAT([&] { decode(bytes); },
              ThrowsMessage<DamagedImage>(AllOf(HasSubstr("some.jpg: "), HasSubstr(text))));
}

// [H, W, channels] of jpeg_bytes().
at::Tensor smooth(std::int64_t height, std::int64_t width, std::int64_t channels) {
  return torch::arange(height).reshape({height, 1, 1}) +
         torch::arange(width).reshape({1, width, 1}) * 2 +
         torch::arange(channels).reshape({1, 1, channels}) * 20;
}

void expect_near(const at::Tensor& image, const at::Tensor& expected) {
  ASSERT_EQ(image.sizes(), expected.sizes());
  EXPECT_EQ(image.scalar_type(), torch::kByte);
  EXPECT_LE((image.to(torch::kLong) - expected).abs().max().item<std::int64_t>(), 8);
}

TEST(ImageFile, ReadsEveryKindOfJpeg) {
  for (const auto scans : {JpegScans::baseline, JpegScans::progressive}) {
    expect_near(decode(jpeg_bytes(33, 50, {.scans = scans})), smooth(33, 50, 3));
    expect_near(decode(jpeg_bytes(16, 7, {.channels = 1, .scans = scans})),
                smooth(16, 7, 1).expand({16, 7, 3}));
    expect_near(decode(jpeg_bytes(20, 30, {.channels = 4, .scans = scans})), smooth(20, 30, 3));
  }
  EXPECT_EQ(decode(jpeg_bytes(1, 1)).sizes(), (std::vector<std::int64_t>{1, 1, 3}));
}

TEST(ImageFile, ReadsEveryKindOfPng) {
  const auto rgb = torch::tensor({1, 2, 3, 4, 5, 6, 251, 252, 253, 254, 255, 0}, torch::kByte)
                       .reshape({2, 2, 3});
  const std::vector<std::string> rows{"\1\2\3\4\5\6", std::string("\xfb\xfc\xfd\xfe\xff\0", 6)};
  EXPECT_TRUE(decode(png_bytes(2, rows)).equal(rgb));
  EXPECT_TRUE(decode(png_bytes(2, rows, {.interlaced = true})).equal(rgb));
  EXPECT_TRUE(decode(png_bytes(1, {"\1\2\3\7"}, {.color_type = PNG_COLOR_TYPE_RGBA}))
                  .equal(torch::tensor({{{1, 2, 3}}}, torch::kByte)));
  EXPECT_TRUE(decode(png_bytes(1, {"\5\7"}, {.color_type = PNG_COLOR_TYPE_GRAY_ALPHA}))
                  .equal(torch::tensor({{{5, 5, 5}}}, torch::kByte)));
  EXPECT_TRUE(decode(png_bytes(3, {"\x1b"}, {.color_type = PNG_COLOR_TYPE_PALETTE, .depth = 2}))
                  .equal(torch::tensor({{{0, 0, 0}, {1, 2, 3}, {2, 4, 6}}}, torch::kByte)));
  EXPECT_TRUE(decode(png_bytes(2, {std::string("\x40", 1)},
                               {.color_type = PNG_COLOR_TYPE_GRAY, .depth = 1}))
                  .equal(torch::tensor({{{0, 0, 0}, {255, 255, 255}}}, torch::kByte)));
  EXPECT_TRUE(decode(png_bytes(1, {std::string("\x80\x80", 2)},
                               {.color_type = PNG_COLOR_TYPE_GRAY, .depth = 16}))
                  .equal(torch::full({1, 1, 3}, 128, torch::kByte)));
}

TEST(ImageFile, RefusesEveryTruncation) {
  const std::vector<std::string> whole{
      jpeg_bytes(24, 24), jpeg_bytes(24, 24, {.scans = JpegScans::progressive}),
      png_bytes(3, {"abcdefghi", "jklmnopqr"}),
      png_bytes(3, {"abcdefghi", "jklmnopqr"}, {.interlaced = true})};
  for (const std::string& bytes : whole) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(decode(bytes.substr(0, size)), DamagedImage) << size << " of " << bytes.size();
    }
  }
  expect_damaged("", "the file is empty");
  expect_damaged(whole[0].substr(0, whole[0].size() / 2), "Premature end of JPEG file");
  expect_damaged(whole[2].substr(0, whole[2].size() - 20), "the data ends early");
}

TEST(ImageFile, FindsEveryFlippedBitOfAPng) {
  const std::string bytes = png_bytes(3, {"abcdefghi", "jklmnopqr"});
  const auto expected = decode(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      try {  // a flip that does not matter for the pixels may pass
        EXPECT_TRUE(decode(flipped).equal(expected)) << "byte " << i << " bit " << bit;
      } catch (const DamagedImage&) {
      }
    }
  }
}

TEST(ImageFile, RefusesOtherFormatsAndHostileSizes) {
  expect_damaged("GIF89a and so on", "neither a JPEG nor a PNG image");
  // The dimensions of a PNG, with a checksum that fits.
  std::string png = png_bytes(1, {"abc"});
  const auto with_size = [&](std::uint32_t width, std::uint32_t height) {
    std::string changed = png;
    for (int i = 0; i < 4; ++i) {
      changed[static_cast<std::size_t>(16 + i)] = static_cast<char>(width >> (24 - 8 * i));
      changed[static_cast<std::size_t>(20 + i)] = static_cast<char>(height >> (24 - 8 * i));
    }
    const auto* chunk = reinterpret_cast<const Bytef*>(changed.data()) + 12;
    const auto sum = static_cast<std::uint32_t>(crc32(0, chunk, 17));
    for (int i = 0; i < 4; ++i) {
      changed[static_cast<std::size_t>(29 + i)] = static_cast<char>(sum >> (24 - 8 * i));
    }
    return changed;
  };
  expect_damaged(with_size(50'000, 50'000), "50000 x 50000 pixels; images of 1 to 100000000");
  expect_damaged(with_size(0x7fffffff, 0x7fffffff), "the PNG image is damaged");
  expect_damaged(with_size(0, 1), "the PNG image is damaged");
  // The dimensions of a JPEG, behind the marker of its frame.
  std::string jpeg = jpeg_bytes(8, 8);
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");
  expect_damaged(jpeg, "65000 x 65000 pixels; images of 1 to 100000000");
}

// The last scan of a progressive image, repeated: each takes as long as the image is large.
TEST(ImageFile, RefusesAProgressiveImageOfTooManyScans) {
  const std::string bytes = jpeg_bytes(64, 64, {.scans = JpegScans::spectral});
  const std::size_t last = bytes.rfind("\xff\xda");
  const std::string scan = bytes.substr(last, bytes.size() - 2 - last);
  const auto repeated = [&](int times) {
    std::string result = bytes.substr(0, bytes.size() - 2);
    for (int i = 0; i < times; ++i) result += scan;
    return result + "\xff\xd9";
  };
  EXPECT_TRUE(decode(repeated(50)).equal(decode(bytes)));
  expect_damaged(repeated(200), "more than 100 scans");
}

TEST(ImageFile, SurvivesRandomMutations) {
  const std::vector<std::string> seeds{
      jpeg_bytes(24, 40), jpeg_bytes(24, 40, {.scans = JpegScans::progressive}),
      jpeg_bytes(9, 9, {.channels = 4}), png_bytes(3, {"abcdefghi", "jklmnopqr"}),
      png_bytes(3, {"\x1b"}, {.color_type = PNG_COLOR_TYPE_PALETTE, .depth = 2})};
  std::mt19937 random(20261129);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    for (auto changes = 1 + random() % 5; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.insert(at, 1 + random() % 5, static_cast<char>(random()));
          break;
        default:
          bytes.erase(at, 1);
      }
    }
    try {
      const at::Tensor image = decode(bytes);
      (void)image.sum().item<std::int64_t>();  // reads every element, for AddressSanitizer
    } catch (const DamagedImage&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 3000);
}

// Files called good-* are read, the others refused.
TEST(ImageFile, ReadsTheFuzzersCorpus) {
  int files = 0;
  const auto corpus =
      std::filesystem::path(testing::kSourceFolder) / "tests/data/fuzz/corpus/image";
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    const auto read = [&] { read_image(entry.path()); };
    if (entry.path().filename().string().starts_with("good-")) {
      EXPECT_NO_THROW(read()) << entry.path();
    } else {
      EXPECT_THROW(read(), DamagedImage) << entry.path();
    }
    ++files;
  }
  EXPECT_GT(files, 2);
}

TEST(ImageFile, NamesTheFileThatItCannotRead) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT([&] { read_image(folder.path() / "absent.png"); },
              ThrowsMessage<UsageError>(HasSubstr("absent.png: there is no such file")));
  folder.write("huge.png", png_bytes(1, {"abc"}));
  std::filesystem::resize_file(folder.path() / "huge.png", std::uintmax_t{1} << 40);  // a hole
  EXPECT_THAT([&] { read_image(folder.path() / "huge.png"); },
              ThrowsMessage<DamagedImage>(HasSubstr("/huge.png: it has 1099511627776 bytes")));
  EXPECT_TRUE(has_image_name("a/b.JPeG"));
  EXPECT_FALSE(has_image_name("a.png/b"));
}

}  // namespace
}  // namespace lockstep
