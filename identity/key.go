package identity

import "fmt"

// Key returns a text that is equal for clients that have proven the same identity, and different for others. It is
// empty for a client that has proven nothing.
func (id *Identity) Key() string {
	switch {
	case !id.Authenticated():
		return ""
	case id.Source == Unix && id.UID != nil:
		return fmt.Sprintf("unix:%d", *id.UID)
	case id.Source == JWT:
		return fmt.Sprintf("jwt:%q %q", id.Subject, fmt.Sprint(id.Claims["iss"]))
	case id.SPIFFEID != "":
		return id.SPIFFEID
	default:
		return fmt.Sprintf("%s:%q %q", id.Source, id.Subject, id.DNSNames)
	}
}
