// SPDX-License-Identifier: BSD-3-Clause
// Encodes messages and frames records, little-endian on any machine.
#include "lockstep/train/event_encoding.h"

#include <array>
#include <bit>

namespace lockstep {
namespace {

// The remainders of all bytes for the reflected polynomial.
constexpr auto kRemainders = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82F63B78u : 0);
    table[byte] = rest;
  }
  return table;
}();

template <class Number>
void append_little_endian(std::string& to, Number value) {
  for (std::size_t byte = 0; byte < sizeof value; ++byte) {
    to += static_cast<char>(value >> (8 * byte) & 0xFF);
  }
}

// A checksum of data that contains checksums would be weak: the format stores them changed.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    rest = (rest >> 8) ^ kRemainders[(rest ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~rest;
}

std::string event_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked(crc32c(record)));
  record += data;
  append_little_endian(record, masked(crc32c(data)));
  return record;
}

void EventMessage::key(unsigned field, unsigned wire_type) {
  varint(field << 3 | wire_type);
}

void EventMessage::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>(value | 0x80);
  encoded_ += static_cast<char>(value);
}

EventMessage& EventMessage::integer(unsigned field, std::int64_t value) {
  key(field, kVarint);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

EventMessage& EventMessage::real(unsigned field, double value) {
  key(field, kFixed64);
  append_little_endian(encoded_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

EventMessage& EventMessage::single(unsigned field, float value) {
  key(field, kFixed32);
  append_little_endian(encoded_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

EventMessage& EventMessage::bytes(unsigned field, std::string_view value) {
  key(field, kLengthDelimited);
  varint(value.size());
  encoded_ += value;
  return *this;
}

EventMessage& EventMessage::reals(unsigned field, std::span<const double> values) {
  std::string packed;
  for (const double value : values) {
    append_little_endian(packed, std::bit_cast<std::uint64_t>(value));
  }
  return bytes(field, packed);
}

}  // namespace lockstep
