package identity_test

import (
	"errors"
	"testing"

	"github.com/xds-relay/xds-relay/identity"
)

func TestABearerTokenIsInOneAuthorization(t *testing.T) {
	for _, tt := range []struct {
		name          string
		authorization []string
		want          string
		invalid       bool
	}{
		{"none", nil, "", false},
		{"a token", []string{"Bearer abc"}, "abc", false},
		{"a scheme in another case", []string{"bearer  abc "}, "abc", false},
		{"another scheme", []string{"Basic abc"}, "", false},
		{"another scheme too", []string{"Basic abc", "Bearer abc"}, "abc", false},
		{"no scheme", []string{""}, "", false},
		{"two tokens", []string{"Bearer abc", "Bearer def"}, "", true},
		{"an empty token", []string{"Bearer "}, "", true},
		{"only spaces", []string{"Bearer   "}, "", true},
		{"only the scheme", []string{"Bearer"}, "", true},
		{"an empty token and a token", []string{"Bearer", "Bearer abc"}, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := identity.Proof{Authorization: tt.authorization}.Token()
			var refused *identity.RefusedError
			if invalid := errors.As(err, &refused) && refused.Reason == identity.InvalidToken; got != tt.want || invalid != tt.invalid || err != nil && !invalid {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
