package identity

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apiserver/pkg/authentication/user"
)

// WellFormed reports whether a user name, UID, group or extra value is interpreted equally by all servers. For
// example, HTTP/1.1 trims headers, so that " system:masters" would become another group on the next server.
func WellFormed(text string) bool {
	return text == strings.TrimSpace(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// CheckWellFormed returns an error if an attribute of u is not WellFormed, or the key of an extra
// attribute is not in lower case, as in headers.
func CheckWellFormed(u user.Info) error {
	if !WellFormed(u.GetName()) {
		return malformed("name", u.GetName())
	}
	if !WellFormed(u.GetUID()) {
		return malformed("UID", u.GetUID())
	}
	for _, group := range u.GetGroups() {
		if !WellFormed(group) {
			return malformed("group", group)
		}
	}
	for key, values := range u.GetExtra() {
		if !WellFormed(key) || key != strings.ToLower(key) {
			return malformed("key of an extra attribute", key)
		}
		for _, value := range values {
			if !WellFormed(value) {
				return malformed("extra attribute "+key, value)
			}
		}
	}
	return nil
}

func malformed(attribute, text string) error {
	return fmt.Errorf("the user's %s %q begins or ends with blanks, contains control characters, or is a key that is not in lower case: "+
		"correct it in the source of the user, because servers would interpret it differently", attribute, text)
}
