package serviceaccount

import (
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// HomeOf returns the logical cluster of a service account, and whether the user
// is one that says where it belongs.
func HomeOf(who user.Info) (logicalcluster.Name, bool) {
	if !strings.HasPrefix(who.GetName(), apiserverserviceaccount.ServiceAccountUsernamePrefix) {
		return "", false
	}
	values := who.GetExtra()[request.ExtraClusterName]
	if len(values) != 1 {
		return "", false
	}
	return logicalcluster.Name(values[0]), true
}
