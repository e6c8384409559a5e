package tenancy

import (
	"crypto/sha256"
	"math/big"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/request"
)

// HomesCluster is the logical cluster, on root's shard, with the Workspaces of home
// workspaces, which nobody but the system sees.
const HomesCluster = logicalcluster.Name(request.SystemPrefix + "homes")

// homeSegment is what the paths of home workspaces start with.
const homeSegment = "user"

// HomeName returns the name of the logical cluster that is the home of a user: the first 8
// bytes of a hash, in base 36, with a zero for each byte that is zero in front.
func HomeName(username string) logicalcluster.Name {
	sum := sha256.Sum224([]byte(username))
	id := sum[:8]
	zeros := 0
	for zeros < len(id) && id[zeros] == 0 {
		zeros++
	}
	return logicalcluster.Name(strings.Repeat("0", zeros) + new(big.Int).SetBytes(id).Text(36))
}

// HomePath returns the path of the home of a user: user:<name>, or the name of the logical
// cluster where the user's is not fit to be a segment of a path, as mail addresses are not.
func HomePath(username string) logicalcluster.Path {
	if request.ValidName(username) {
		return logicalcluster.NewPath(homeSegment).Join(username)
	}
	return HomeName(username).Path()
}

// CutHome takes user:<name> off the beginning of a path, and returns the name of the logical
// cluster that this means, and what follows it.
func CutHome(path string) (home logicalcluster.Name, rest string, more, found bool) {
	after, found := strings.CutPrefix(path, homeSegment+":")
	if !found {
		return "", "", false, false
	}
	username, rest, more := strings.Cut(after, ":")
	return HomeName(username), rest, more, true
}
