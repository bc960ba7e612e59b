package peers

import (
	"bytes"
	"fmt"
	"os"
)

// Section is a generated section of a page: the text between the comments <!-- name --> and <!-- end of name -->.
type Section struct {
	File, Name string
}

// Check returns an error if the section is not text.
func (s Section) Check(text string) error {
	page, from, to, err := s.find()
	if err == nil && string(page[from:to]) != text {
		err = fmt.Errorf("%s: the section %q is not what the tests have seen (make interop ARGS=-update writes it)", s.File, s.Name)
	}
	return err
}

// Write replaces the section.
func (s Section) Write(text string) error {
	page, from, to, err := s.find()
	if err != nil {
		return err
	}
	return os.WriteFile(s.File, bytes.Join([][]byte{page[:from], []byte(text), page[to:]}, nil), 0o600)
}

// find returns the page, and where in it the section is.
func (s Section) find() (page []byte, from, to int, err error) {
	page, err = os.ReadFile(s.File)
	if err != nil {
		return nil, 0, 0, err
	}
	begin, end := []byte("<!-- "+s.Name+" -->\n"), []byte("<!-- end of "+s.Name+" -->")
	from, to = bytes.Index(page, begin), bytes.Index(page, end)
	if from < 0 || to < from {
		return nil, 0, 0, fmt.Errorf("%s has no section %q (want the lines %s and %s)", s.File, s.Name, bytes.TrimSpace(begin), end)
	}
	return page, from + len(begin), to, nil
}
