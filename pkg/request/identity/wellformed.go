package identity

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apiserver/pkg/authentication/user"
)

// WellFormed reports whether a user name, UID, group or value of an extra attribute
// means the same to every server. HTTP/1.1 trims what stands in headers, so that
// " system:masters" would be another group behind the next server.
func WellFormed(text string) bool {
	return text == strings.TrimSpace(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// CheckWellFormed returns an error that names the attribute of u that is not
// WellFormed, or the key of an extra attribute that is not in lower case, in which
// headers carry all keys.
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

func malformed(what, text string) error {
	return fmt.Errorf("the user's %s %q begins or ends with blanks, has control characters, or is a key that is not in lower case: "+
		"servers would take it for another one, so correct it where the user comes from", what, text)
}
