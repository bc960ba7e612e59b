package integration

import "fmt"

// prelude begins every configuration: ports that nobody else has.
const prelude = `
listeners:
  - address: 127.0.0.1:0
admin:
  address: 127.0.0.1:0
node:
  id: the-relay
`

// relayTo is the configuration for one control plane, of which all clients see
// the same. upstream is the server's protocol.
func relayTo(address, upstream string) string {
	return prelude + servedBy(address, upstream) + `
old_style_names:
  - authority: cp.example.com
`
}

// servedBy is the part of a configuration that has a control plane.
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
