// SPDX-License-Identifier: BSD-3-Clause
// Unix sockets that carry data, credentials and descriptors.
#include "lockstep/core/net/unix_socket.h"

#include <array>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

struct Connection {
  explicit Connection(const std::string& suffix) {
    const std::string address = fmt::format("@lockstep-test-{}-{}", getpid(), suffix);
    UniqueFd listener = listen_unix(address);
    client = connect_unix(address, Deadline::after(1s));
    server = accept_connection(listener.get(), Deadline::after(1s));
  }
  UniqueFd client;
  UniqueFd server;
};

TEST(UnixSocket, CarriesMoreThanItsBuffer) {
  Connection connection("large");
  std::vector<std::byte> sent(4 << 20, std::byte{7});
  std::vector<std::byte> received(sent.size());
  std::jthread sender([&] { send_all(connection.client.get(), sent, Deadline::after(10s)); });
  receive_all(connection.server.get(), received, Deadline::after(10s));
  EXPECT_EQ(sent, received);
}

TEST(UnixSocket, NamesTheProcessAtTheOtherEnd) {
  Connection connection("peer");
  EXPECT_EQ(peer_of(connection.server.get()).pid, getpid());
  EXPECT_EQ(peer_of(connection.server.get()).uid, getuid());
}

TEST(UnixSocket, PassesADescriptor) {
  Connection connection("descriptor");
  UniqueFd memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 123), 0);
  send_fd(connection.client.get(), memory.get(), Deadline::after(1s));
  const UniqueFd received = receive_fd(connection.server.get(), Deadline::after(1s));
  struct stat status {};
  ASSERT_EQ(fstat(received.get(), &status), 0);
  EXPECT_EQ(status.st_size, 123);
}

TEST(UnixSocket, ReceivingEndsAtTheDeadline) {
  Connection connection("deadline");
  std::array<std::byte, 1> data{};
  EXPECT_THROW(receive_all(connection.server.get(), data, Deadline::after(20ms)), TimeoutError);
}

TEST(UnixSocket, SeesThatThePeerClosed) {
  Connection connection("closed");
  connection.client.reset();
  std::array<std::byte, 1> data{};
  EXPECT_THROW(receive_all(connection.server.get(), data, Deadline::after(1s)), ConnectionClosed);
}

TEST(UnixSocket, RefusesAnAddressThatDoesNotFit) {
  EXPECT_THROW(listen_unix(std::string(200, 'x')), UsageError);
  EXPECT_THROW(connect_unix("", Deadline::after(1s)), UsageError);
}

}  // namespace
}  // namespace lockstep
