package configs

import (
	"strings"
	"testing"
)

// The pages of the admin listener say what the relay serves to whom.
func TestOtherHostsReachTheOperatorOnlyWithCertificates(t *testing.T) {
	const withTLS = ", tls: {cert_file: c, key_file: k, client_ca_file: a}"
	const exposed = "other hosts can reach it, and there is no admin.tls"
	for _, tt := range []struct {
		admin string
		want  string // a part of the error, "" if there is none
	}{
		{"address: '127.0.0.1:1'", ""},
		{"address: '127.255.255.254:1'", ""},
		{"address: '[::1]:1'", ""},
		{"address: '[::ffff:127.0.0.1]:1'", ""},
		{"address: 'localhost:1'", ""},
		{"address: 'LOCALHOST:1'", ""},
		{"address: ':1'", exposed},
		{"address: '0.0.0.0:1'", exposed},
		{"address: '[::]:1'", exposed},
		{"address: '[::ffff:0.0.0.0]:1'", exposed},
		{"address: '10.1.2.3:1'", exposed},
		{"address: '128.0.0.1:1'", exposed},
		{"address: '127.1:1'", exposed}, // for a resolver to say
		{"address: 'relay.example.com:1'", exposed},
		{"address: 'localhost.example.com:1'", exposed},
		{"address: ':1'" + withTLS, ""},
		{"address: '0.0.0.0:1'" + withTLS, ""},
		{"address: 'relay.example.com:1'" + withTLS, ""},
		{"address: '127.0.0.1:1'" + withTLS, ""},
		{"address: ':1', tls: {}", "admin.tls.client_ca_file: missing"},
		{"address: ':1', tls: {cert_file: c, key_file: k}", "admin.tls.client_ca_file: missing (want the file of the roots of the operators' certificates"},
		{"address: ':1', tls: {key_file: k, client_ca_file: a}", "admin.tls.cert_file: missing"},
		{"address: ':1', tls: {cert_file: c, client_ca_file: a}", "admin.tls.key_file: missing"},
		{"address: ':1', tls: {cert_file: c, key_file: k, client_ca_file: ''}", `admin.tls.client_ca_file: is ""`},

		{"address: 'unix:/run/admin.sock'", ""},
		{"address: 'unix:admin.sock', mode: '0660'", ""},
		{"address: 'unix:admin.sock', mode: 0660", ""},
		{"address: 'unix:admin.sock', mode: 0o660", ""},
		{"address: 'unix:'", "has no path (want unix:/path)"},
		{"address: 'unix:@admin'", "is an abstract socket"},
		{"address: 'unix:/" + strings.Repeat("x", 107) + "'", "has a path of 108 bytes (want at most 107)"},
		{"address: 'unix:/a', mode: rw", `"rw" is not a file mode (want octal digits, such as "0600")`},
		{"address: 'unix:/a', mode: '01777'", `"01777" is not a file mode`},
		{"address: 'unix:/a', mode: '0698'", `"0698" is not a file mode`},
		{"address: '127.0.0.1:1', mode: '0660'", "admin.mode: is for unix sockets (want no such key, or address: unix:/path)"},
	} {
		c, err := Parse("relay.yaml", []byte(head+"admin: {"+tt.admin+"}\n"))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.admin, err)
			} else if want := FileMode(0o600); strings.Contains(tt.admin, "660") != (c.Admin.Mode != want) {
				t.Errorf("%s: the mode is %s", tt.admin, c.Admin.Mode)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.admin, err, tt.want)
		}
		if !strings.Contains(tt.want, exposed) && strings.Contains(err.Error(), exposed) {
			t.Errorf("%s has a second error: %v", tt.admin, err)
		}
	}
}
