// SPDX-License-Identifier: BSD-3-Clause
// The signatures and fields of zip archives (PKWARE's APPNOTE.TXT).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace lockstep::zip {

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDescriptor = 0x08074b50;
constexpr std::uint32_t kCentralHeader = 0x02014b50;
constexpr std::uint32_t kEndRecord = 0x06054b50;
constexpr std::uint32_t kZip64EndRecord = 0x06064b50;
constexpr std::uint32_t kZip64Locator = 0x07064b50;
constexpr std::uint16_t kZip64Extra = 0x0001;

constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kCentralHeaderBytes = 46;
constexpr std::uint64_t kEndRecordBytes = 22;
constexpr std::uint64_t kZip64EndRecordBytes = 56;
constexpr std::uint64_t kZip64LocatorBytes = 20;
constexpr std::uint64_t kDescriptorBytes = 16;
constexpr std::uint64_t kZip64DescriptorBytes = 24;

// A field with this value is in the zip64 extra field or record instead.
constexpr std::uint32_t kIn64 = 0xffffffff;
constexpr std::uint16_t kIn64Short = 0xffff;

constexpr std::uint16_t kHasDescriptor = 1 << 3;
constexpr std::uint16_t kNamesAreUtf8 = 1 << 11;

// Takes fields one after another. The text must have them all.
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {}

  template <class Number>
  Number take() {
    Number number{};
    std::memcpy(&number, text_.data(), sizeof(number));
    text_.remove_prefix(sizeof(number));
    return number;
  }
  std::uint16_t u16() { return take<std::uint16_t>(); }
  std::uint32_t u32() { return take<std::uint32_t>(); }
  std::uint64_t u64() { return take<std::uint64_t>(); }
  std::string_view text(std::size_t size) {
    const auto result = text_.substr(0, size);
    text_.remove_prefix(size);
    return result;
  }
  std::size_t left() const { return text_.size(); }

 private:
  std::string_view text_;
};

template <class... Numbers>
void append(std::string& text, Numbers... numbers) {
  const auto one = [&](auto number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    text.append(bytes, sizeof(number));
  };
  (one(numbers), ...);
}

}  // namespace lockstep::zip
