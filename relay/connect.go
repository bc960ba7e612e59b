package relay

import (
	"log/slog"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/certs"
	"github.com/xds-relay/xds-relay/upstream"
)

// ServerConn is a connection to a control plane with the settings that the relay uses, for a command that tries them.
type ServerConn struct {
	connection
	// REST is the connection if the server is polled, else nil.
	REST        *upstream.RESTConn
	credentials *certs.Part
}

// DialServer returns a connection to a server of a configuration, which connects on first use. An error is one of its files.
func DialServer(s configs.Server) (*ServerConn, error) {
	credentials := certs.NewStore(slog.New(slog.DiscardHandler)).Part()
	conn, err := dial(s, credentials, nil, nil)
	if err != nil {
		credentials.Close()
		return nil, err
	}
	rest, _ := conn.(*upstream.RESTConn)
	return &ServerConn{connection: conn, REST: rest, credentials: credentials}, nil
}

// Close ends the connection.
func (c *ServerConn) Close() error {
	defer c.credentials.Close()
	return c.connection.Close()
}

// ReasonOf returns why a server could not be used, in the words of the log, with the key of the configuration that may be wrong.
func ReasonOf(err error) string { return upstream.Reason(err) }
