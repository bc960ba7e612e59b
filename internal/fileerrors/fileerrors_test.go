package fileerrors

import (
	"errors"
	"io/fs"
	"testing"
)

func TestAnErrorSaysWhereAndWhatOnOneLine(t *testing.T) {
	mistake := errors.New("is wrong")
	for want, e := range map[string]Error{
		"is wrong":                     {Err: mistake},
		"a.yaml: is wrong":             {File: "a.yaml", Err: mistake},
		"a.yaml:3: is wrong":           {File: "a.yaml", Line: 3, Err: mistake},
		"a.yaml:3:7: b[2].c: is wrong": {File: "a.yaml", Line: 3, Column: 7, Path: "b[2].c", Err: mistake},
		"XDS_RELAY_B: b: is wrong":     {File: "XDS_RELAY_B", Path: "b", Err: mistake},
		"cert_file: is wrong":          {Path: "cert_file", Err: mistake},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAListIsOneLinePerErrorAndIsEachOfThem(t *testing.T) {
	if err := (List{}).OrNil(); err != nil {
		t.Errorf("without a mistake: got %v, want nil", err)
	}
	err := List{{File: "a", Err: errors.New("is wrong")}, {File: "b", Err: fs.ErrNotExist}}.OrNil()
	if got, want := err.Error(), "a: is wrong\nb: "+fs.ErrNotExist.Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the list is not the error of its second mistake")
	}
	if e, ok := errors.AsType[Error](err); !ok || e.File != "a" {
		t.Errorf("as an Error, the list is %+v, want the first", e)
	}
}
