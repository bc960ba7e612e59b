package integration

import "fmt"

// prelude is the beginning of every configuration. The system chooses free ports.
const prelude = `
listeners:
  - address: 127.0.0.1:0
admin:
  address: 127.0.0.1:0
node:
  id: the-relay
`

// relayTo returns a configuration with one control plane, which serves all clients the same resources.
// upstream is the server's protocol.
func relayTo(address, upstream string) string {
	return prelude + servedBy(address, upstream) + `
old_style_names:
  - authority: cp.example.com
`
}

// servedBy returns the part of a configuration with the authority of one control plane.
func servedBy(address, upstream string) string {
	return fmt.Sprintf(`
authorities:
  - name: cp.example.com
    servers:
      - address: %s
        protocol: %s
        backoff: {base: 20ms, max: 200ms}
`, address, upstream)
}
