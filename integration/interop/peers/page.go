package peers

import (
	"bytes"
	"fmt"
	"os"
)

// Section is a generated section of a page: the text between the comments <!-- name --> and <!-- end of name -->.
type Section struct{ Name, Text string }

// check returns an error if the page does not have the section.
func (s Section) check(file string) error {
	page, from, to, err := s.find(file)
	if err == nil && string(page[from:to]) != s.Text {
		err = fmt.Errorf("%s: the section %q is not what the tests have seen (make interop ARGS=-update writes it), which is:\n%s", file, s.Name, s.Text)
	}
	return err
}

// write replaces the section of the page.
func (s Section) write(file string) error {
	page, from, to, err := s.find(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.Join([][]byte{page[:from], []byte(s.Text), page[to:]}, nil), 0o600)
}

// find returns the page, and where in it the section is.
func (s Section) find(file string) (page []byte, from, to int, err error) {
	page, err = os.ReadFile(file)
	if err != nil {
		return nil, 0, 0, err
	}
	begin, end := []byte("<!-- "+s.Name+" -->\n"), []byte("<!-- end of "+s.Name+" -->")
	from, to = bytes.Index(page, begin), bytes.Index(page, end)
	if from < 0 || to < from {
		return nil, 0, 0, fmt.Errorf("%s has no section %q (want the lines %s and %s)", file, s.Name, bytes.TrimSpace(begin), end)
	}
	return page, from + len(begin), to, nil
}
