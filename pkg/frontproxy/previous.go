package frontproxy

import (
	"bytes"
	"io"
	"mime"
	"net/http"

	"github.com/shardplane/shardplane/pkg/authz"
)

// This file is for shards of the previous version, which say of denials neither
// that the user has entered nor that it has not. The next version has no use for
// it: a 403 without the mark is one that is concealed.

// maxForbiddenBody is how much of a shard's 403 is looked at.
const maxForbiddenBody = 64 << 10

// concealsOfPrevious is conceals for a 403 of such a shard: it looks for the
// reason in the body.
func (f *forwarder) concealsOfPrevious(r *http.Request, res *http.Response, to *route) (bool, error) {
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
	return f.denied(r.Context(), to), nil
}

// deniedByPrevious reports whether such a shard's 403 says that the user may not
// enter.
func deniedByPrevious(res *http.Response) bool {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxForbiddenBody)) // a part tells as much
	return bytes.Contains(body, []byte(authz.NotPermitted))
}

// isPlain reports whether texts stand in a body as they are. In YAML they may be
// folded.
func isPlain(header http.Header) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && header.Get("Content-Encoding") == "" &&
		(kind == "application/json" || kind == "application/vnd.kubernetes.protobuf")
}

type readCloser struct {
	io.Reader
	io.Closer
}
