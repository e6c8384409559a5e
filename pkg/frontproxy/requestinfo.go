package frontproxy

import (
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// requestInfos takes the paths of requests apart as the shards do.
var requestInfos = &genericapirequest.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

// requestInfo returns what r, whose path is rest below a logical cluster, asks
// for.
func requestInfo(r *http.Request, rest string) (*genericapirequest.RequestInfo, error) {
	inner := *r
	innerURL := *r.URL
	innerURL.Path = rest
	inner.URL = &innerURL
	return requestInfos.NewRequestInfo(&inner)
}

func unescapedRest(rest string) string {
	path, err := url.PathUnescape(rest)
	if err != nil || path == "" {
		return "/"
	}
	return path
}

// isWatch reports whether the answer to r is a stream that lasts: whether the
// shard takes r for a watch. Names may be words of the API, too.
func isWatch(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	// Most requests need not be taken apart.
	if !strings.Contains(r.URL.Path, "/watch/") && !strings.Contains(r.URL.RawQuery, "watch") && !strings.Contains(r.URL.RawQuery, "%") {
		return false
	}
	// Without the query, which anybody could fill the log with.
	bare := http.Request{Method: r.Method, URL: &url.URL{}}
	at, err := addressOf(r.URL.EscapedPath())
	if err != nil {
		return false
	}
	// Servers of the mapping file may have logical clusters anywhere in their paths.
	if _, below, found := strings.Cut(at.rest, request.Clusters.Prefix); found && !at.valid {
		_, at.rest = splitEscaped(below)
	}
	info, err := requestInfo(&bare, unescapedRest(at.rest))
	if err != nil || !info.IsResourceRequest {
		return false
	}
	switch info.Verb {
	case "watch":
		return true
	case "list":
		values := r.URL.Query()["watch"]
		return len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
	default:
		return false
	}
}
