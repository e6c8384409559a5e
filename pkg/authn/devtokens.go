package authn

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
)

// devUsers is how many ordinary users the development cluster knows.
const devUsers = 5

// DevTokens returns the bearer tokens of the development cluster with the user
// of each: user-N-token for user-N of group team-N, and admin-token for a
// member of system:masters.
func DevTokens() map[string]*user.DefaultInfo {
	tokens := make(map[string]*user.DefaultInfo, devUsers+1)
	for n := 1; n <= devUsers; n++ {
		name := fmt.Sprintf("user-%d", n)
		tokens[name+"-token"] = &user.DefaultInfo{Name: name, UID: name, Groups: []string{fmt.Sprintf("team-%d", n)}}
	}
	tokens["admin-token"] = &user.DefaultInfo{Name: "admin", UID: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	return tokens
}
