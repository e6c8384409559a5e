// Package shardselector parses the parameter shardSelector of KEP-5866. In addition to upstream's
// parser, it supports the logical cluster as key.
package shardselector

import (
	"fmt"
	"regexp"
	"strings"

	apisharding "k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

var (
	clusterPath = pathPattern(hashrange.Cluster)
	otherPaths  = regexp.MustCompile(pathPattern(hashrange.UID).String() + "|" + pathPattern(hashrange.Namespace).String())
)

func pathPattern(key hashrange.Key) *regexp.Regexp {
	return regexp.MustCompile(`\b` + strings.ReplaceAll(key.Path(), ".", `\s*\.\s*`) + `\b`)
}

// Parse parses an expression. Selectors by logical cluster have the same grammar, so that
// upstream's parser is used with another path.
func Parse(expression string) (apisharding.Selector, error) {
	if !clusterPath.MatchString(expression) {
		selector, err := sharding.Parse(expression)
		if err != nil && strings.Contains(err.Error(), "unsupported field path") {
			err = fmt.Errorf("%w, %s", err, hashrange.Cluster.Path())
		}
		return selector, err
	}
	if other := otherPaths.FindString(expression); other != "" {
		return nil, fmt.Errorf("all shard ranges must use the same field, got %q and %q", hashrange.Cluster.Path(), other)
	}
	parsed, err := sharding.Parse(clusterPath.ReplaceAllLiteralString(expression, hashrange.UID.Path()))
	if err != nil {
		return nil, err
	}
	requirements := parsed.Requirements()
	for i := range requirements {
		if requirements[i].Key != hashrange.UID.Path() {
			return nil, fmt.Errorf("all shard ranges must use the same field, got %q and %q", hashrange.Cluster.Path(), requirements[i].Key)
		}
		requirements[i].Key = hashrange.Cluster.Path()
	}
	return apisharding.NewSelector(requirements...), nil
}
