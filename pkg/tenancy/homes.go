package tenancy

import (
	"crypto/sha256"
	"math/big"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/request"
)

// HomesCluster is the logical cluster on root's shard that contains the Workspaces of home workspaces. Users cannot
// access it.
const HomesCluster = logicalcluster.Name(request.SystemPrefix + "homes")

// homeSegment is the first segment of the paths of home workspaces.
const homeSegment = "user"

// HomeName returns the name of the logical cluster of a user's home workspace: the first 8 bytes of a hash, in base 36,
// with a leading zero for each leading zero byte.
func HomeName(username string) logicalcluster.Name {
	sum := sha256.Sum224([]byte(username))
	id := sum[:8]
	zeros := 0
	for zeros < len(id) && id[zeros] == 0 {
		zeros++
	}
	return logicalcluster.Name(strings.Repeat("0", zeros) + new(big.Int).SetBytes(id).Text(36))
}

// HomePath returns the path of a user's home workspace: user:<name>, or the name of the logical cluster if the user name
// is not a valid path segment, e.g. a mail address.
func HomePath(username string) logicalcluster.Path {
	if request.ValidName(username) {
		return logicalcluster.NewPath(homeSegment).Join(username)
	}
	return HomeName(username).Path()
}

// CutHome cuts user:<name> from the beginning of a path. It returns the logical cluster of that home workspace and the
// rest of the path.
func CutHome(path string) (home logicalcluster.Name, rest string, more, found bool) {
	after, found := strings.CutPrefix(path, homeSegment+":")
	if !found {
		return "", "", false, false
	}
	username, rest, more := strings.Cut(after, ":")
	return HomeName(username), rest, more, true
}
