package authority

// Context parameters, and the policy that an authority has for them in the configuration.

import (
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/urn"
)

// withPolicy returns the key with which the relay requests key from its authority: without
// the dropped context parameters. name is the client's spelling. A name without a required
// parameter is an error.
func withPolicy(p *configs.ContextParameters, name string, key urn.Key) (urn.Key, error) {
	if p == nil {
		return key, nil
	}
	key = key.WithParams(func(param string) bool { return !p.Drops(param) })
	// A dropped parameter does not count as present. So the result would pass the same check.
	var missing []string
	for _, entry := range p.Require {
		if !hasParameter(key, entry) {
			missing = append(missing, entry)
		}
	}
	if missing != nil {
		return urn.Key{}, &MissingParameterError{Name: name, Authority: key.Authority, Parameters: missing}
	}
	return key, nil
}

func hasParameter(key urn.Key, entry string) bool {
	for param := range key.ParamKeys() {
		if configs.MatchesParameter(entry, param) {
			return true
		}
	}
	return false
}

// dropped returns the parameters of a name that the policy drops.
func dropped(p *configs.ContextParameters, name string) []string {
	key, err := urn.KeyOf(name)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Collect(key.ParamKeys()), func(param string) bool { return !p.Drops(param) })
}

func describePolicy(p *configs.ContextParameters) string {
	passed := "all are passed on"
	switch {
	case len(p.Drop) > 0:
		passed = "all are passed on except " + strings.Join(p.Drop, ", ")
	case len(p.Keep) > 0:
		passed = "only " + strings.Join(p.Keep, ", ") + " are passed on"
	}
	if len(p.Require) == 0 {
		return passed
	}
	return passed + "; names without " + strings.Join(p.Require, ", or ") + " are refused"
}
