package frontproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// maxForbiddenBody is how much of a shard's 403 is looked at.
	maxForbiddenBody = 64 << 10
	// strangerTimeout bounds the question whether a user may enter.
	strangerTimeout = 5 * time.Second
)

// hides tells whether a shard's answer must not reach the client, because it
// would tell a user without access that the logical cluster exists. That are
// denials of access, and errors that the shard answers before it authorizes:
// malformed impersonation, timeouts, headers that are too long. Whoever may
// enter gets them unchanged, and so do other denials pass.
func (f *forwarder) hides(r *http.Request, res *http.Response, to *route) (bool, error) {
	authorized := res.Header.Get(request.AuthorizedHeader) != ""
	res.Header.Del(request.AuthorizedHeader)
	if authorized || res.StatusCode < http.StatusBadRequest {
		return false, nil
	}
	if res.StatusCode != http.StatusForbidden {
		return f.stranger(r.Context(), to), nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxForbiddenBody+1))
	if err != nil {
		return false, err
	}
	if bytes.Contains(body, []byte(authz.NotPermitted)) {
		return true, nil
	}
	res.Body = readCloser{io.MultiReader(bytes.NewReader(body), res.Body), res.Body}
	if r.Method != http.MethodHead && len(body) <= maxForbiddenBody && isPlain(res.Header) {
		return false, nil
	}
	// It does not say why, or not where it can be seen.
	return f.stranger(r.Context(), to), nil
}

// isPlain tells whether texts stand in a body as they are. In YAML they may be
// folded.
func isPlain(header http.Header) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && header.Get("Content-Encoding") == "" &&
		(kind == "application/json" || kind == "application/vnd.kubernetes.protobuf")
}

// stranger asks the shard whether the user may not enter the logical cluster. A
// shard that does not answer has said nothing.
func (f *forwarder) stranger(ctx context.Context, to *route) bool {
	ctx, cancel := context.WithTimeout(ctx, strangerTimeout)
	defer cancel()
	question := url.URL{Scheme: to.backend.base.Scheme, Host: to.backend.base.Host}
	question.RawPath = to.backend.prefix + request.ClusterPath(to.cluster) + "/version"
	question.Path, _ = url.PathUnescape(question.RawPath) // a URL's prefix and a name
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, question.String(), http.NoBody)
	if err != nil {
		return false
	}
	to.identify(r, f)
	res, err := to.backend.transport(false).RoundTrip(r)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxForbiddenBody)) // a part tells as much
	return res.StatusCode == http.StatusForbidden && bytes.Contains(body, []byte(authz.NotPermitted))
}

// undialled tells whether there was no connection to the shard.
func undialled(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}
