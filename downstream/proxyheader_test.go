package downstream

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
)

func v2(t testing.TB, client, to string, tlvs ...proxyproto.TLV) string {
	t.Helper()
	addr := func(text string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	h := proxyproto.HeaderProxyFromAddrs(2, addr(client), addr(to))
	if err := h.SetTLVs(tlvs); err != nil {
		t.Fatal(err)
	}
	text, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// v2Of is a header of version 2 with any bytes: its command, its family, and what follows.
func v2Of(command, family byte, rest string) string {
	b := append([]byte(nil), proxyproto.SIGV2...)
	b = append(b, command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(rest)))
	return string(b) + rest
}

// A header gives the address of the client, or says that there is none. Nothing beyond it is read.
func TestProxyHeaders(t *testing.T) {
	const after = "PRI * HTTP/2.0"
	for _, test := range []struct{ name, header, client, err string }{
		{"version 2, IPv4", v2(t, "192.0.2.1:1234", "192.0.2.2:443"), "192.0.2.1:1234", ""},
		{"version 2, IPv6", v2(t, "[2001:db8::1]:1234", "[2001:db8::2]:443"), "[2001:db8::1]:1234", ""},
		{"version 2, with more", v2(t, "192.0.2.1:1234", "192.0.2.2:443", proxyproto.TLV{Type: 0xea, Value: bytes.Repeat([]byte("x"), 3000)}), "192.0.2.1:1234", ""},
		{"version 2, LOCAL", v2Of(0x20, 0, ""), "", ""},
		{"version 2, LOCAL with addresses", v2Of(0x20, 0x11, strings.Repeat("\x01", 12)), "", ""},
		{"version 1, IPv4", "PROXY TCP4 192.0.2.1 192.0.2.2 1234 443\r\n", "192.0.2.1:1234", ""},
		{"version 1, IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 1234 443\r\n", "[2001:db8::1]:1234", ""},

		{"version 2, too long", v2Of(0x21, 0x11, strings.Repeat("\x01", 4097)), "", "want at most 4096"},
		{"version 2, too short for its addresses", v2Of(0x21, 0x21, strings.Repeat("\x01", 12)), "", "invalid length"},
		{"version 2, of no protocol", v2Of(0x21, 0, ""), "", "unsupported address family"},
		{"version 2, UDP", v2Of(0x21, 0x12, strings.Repeat("\x01", 12)), "", "no client's address"},
		{"version 2, of a unix socket", v2Of(0x21, 0x31, strings.Repeat("\x01", 216)), "", "no client's address"},
		{"version 3", v2Of(0x31, 0x11, strings.Repeat("\x01", 12)), "", "unsupported proxy protocol version"},
		{"version 1, unknown", "PROXY UNKNOWN\r\n", "", "no client's address"},
		{"version 1, with no end", "PROXY TCP4 " + strings.Repeat("1", 200), "", "no end"},
		{"version 1, with a name", "PROXY TCP4 example.com 192.0.2.2 1234 443\r\n", "", "invalid address"},
		{"version 1, with a zone", "PROXY TCP6 fe80::1%eth0 2001:db8::2 1234 443\r\n", "", "invalid address"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", "does not begin with a header"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00", "", "does not begin with a header"},
		{"nothing", "", "", "EOF"},
		{"version 2, a part", v2(t, "192.0.2.1:1234", "192.0.2.2:443")[:20], "", "EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent := test.header
			if test.err != "EOF" {
				sent += after
			}
			from := strings.NewReader(sent)
			text, err := readProxyHeader(from)
			if test.err == "" && err != nil {
				t.Fatal(err)
			}
			var client net.Addr
			if err == nil {
				client, err = clientOf(text)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("the error is %v, want %q", err, test.err)
			}
			if got := ""; client != nil || test.client != "" {
				if client != nil {
					got = client.String()
				}
				if got != test.client {
					t.Errorf("the client is %s, want %s", got, test.client)
				}
			}
			if rest, _ := io.ReadAll(from); test.err == "" && string(rest) != after {
				t.Errorf("%q is left, want %q", rest, after)
			}
		})
	}
}

// No header makes the relay fail, or read beyond it; and the address of a client is one of IP.
func FuzzProxyHeader(f *testing.F) {
	f.Add(v2(f, "192.0.2.1:1234", "192.0.2.2:443"))
	f.Add(v2Of(0x20, 0, ""))
	f.Add("PROXY TCP6 2001:db8::1 2001:db8::2 1234 443\r\n")
	f.Fuzz(func(t *testing.T, sent string) {
		from := strings.NewReader(sent)
		text, err := readProxyHeader(from)
		if rest, _ := io.ReadAll(from); err == nil && string(text)+string(rest) != sent {
			t.Errorf("%q and %q were read, want %q", text, rest, sent)
		}
		if len(text) > proxyV2Fixed+mostProxyHeader {
			t.Errorf("%d bytes were read", len(text))
		}
		if err != nil {
			return
		}
		client, err := clientOf(text)
		if err != nil || client == nil {
			return
		}
		if tcp, ok := client.(*net.TCPAddr); !ok || !addressGroup(tcp).IsValid() {
			t.Errorf("the client is %v", client)
		}
	})
}
