package upstream

import (
	"slices"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// serviceForms returns the forms in which a type can be requested on a stream of
// its own under a protocol, in the order in which they are tried.
func serviceForms(typeURL string, p Protocol) (forms []*form) {
	service := xdstype.Of(typeURL).Service(typeURL)
	if service == nil || service.V2 {
		return nil // the relay requests nothing over the v2 transport
	}
	add := func(base *form, name Protocol, method string) {
		if method != "" {
			f := *base
			f.name, f.method, f.typeURL = name, method, typeURL
			forms = append(forms, &f)
		}
	}
	if p == REST {
		add(sotwForm, REST, service.Path)
		return forms
	}
	if p != SotW {
		add(deltaForm, Delta, service.Method(service.Delta))
	}
	if p != Delta {
		add(sotwForm, SotW, service.Method(service.Stream))
	}
	if p == AutoSotW {
		slices.Reverse(forms)
	}
	return forms
}
