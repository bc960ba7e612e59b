package main

// Shell completion. The clients and authorities come from a running relay; types need none.

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// completeWithin is how long a shell waits for a relay.
const completeWithin = 2 * time.Second

// completions returns the words that begin with begun.
type completions func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// completeClients completes the first arguments of a command as clients.
func (f *operatorFlags) completeClients(arguments int) completions {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		var list operator.ClientList
		if len(args) >= arguments || !f.quietly(cmd, "/api/clients", url.Values{"search": {begun}, "limit": {"200"}}, &list) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		for _, c := range list.Clients {
			word := c.Node
			if word == "" || strings.ContainsAny(word, "\t\n") {
				word = "#" + strconv.FormatUint(c.Stream, 10)
			}
			if strings.HasPrefix(word, begun) {
				words = append(words, word)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeAuthorities completes a flag with the authorities of the relay.
func (f *operatorFlags) completeAuthorities(cmd *cobra.Command, flag string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		var all []operator.AuthorityStatus
		f.quietly(cmd, "/authorities", url.Values{}, &all)
		var words []string
		for _, a := range all {
			if strings.HasPrefix(a.Authority, begun) {
				words = append(words, a.Authority)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}

// quietly is do for shell completion, which shows no errors.
func (f *operatorFlags) quietly(cmd *cobra.Command, path string, values url.Values, into any) bool {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	quick := *f
	quick.timeout = min(f.timeout, completeWithin)
	return quick.do(ctx, http.MethodGet, path, values, into) == nil
}

// completeTypes completes a flag with the short names of types.
func completeTypes(cmd *cobra.Command, flag string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) (words []string, _ cobra.ShellCompDirective) {
		for _, t := range xdstype.All() {
			if t.Word != "" && strings.HasPrefix(t.Word, begun) {
				words = append(words, t.Word)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has no such flag
	}
}
