// SPDX-License-Identifier: BSD-3-Clause
// The bytes of TensorBoard's event files: the fields of protocol buffers that its messages need,
// and records with checksums.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// CRC-32C (Castagnoli), as in RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

// Returns a record of TensorFlow's file format: length, its masked checksum, data, its masked
// checksum.
std::string event_record(std::string_view data);

// A message of protocol buffers, built field by field. Field numbers are below 16.
class EventMessage {
 public:
  EventMessage& integer(unsigned field, std::int64_t value);
  EventMessage& real(unsigned field, double value);
  EventMessage& single(unsigned field, float value);
  EventMessage& bytes(unsigned field, std::string_view value);
  EventMessage& message(unsigned field, const EventMessage& value) {
    return bytes(field, value.encoded());
  }
  // A packed repeated field.
  EventMessage& reals(unsigned field, std::span<const double> values);

  const std::string& encoded() const { return encoded_; }

 private:
  void key(unsigned field, unsigned wire_type);
  void varint(std::uint64_t value);

  std::string encoded_;
};

}  // namespace lockstep
