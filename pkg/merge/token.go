package merge

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// sealBytes is the size of the digest in a token.
const sealBytes = 12

// cursor is where a list in pages goes on. It is what a continue token holds, so that any
// front-proxy can go on.
type cursor struct {
	// Version is that of the list, which says which shards are in it. One of them has no
	// position in it while it is to be read at its latest version.
	Version string `json:"v"`
	// Shard is the number of the shard that the next page begins with, and Token its own.
	Shard uint32 `json:"s"`
	Token string `json:"t,omitempty"`
}

// token returns the continue token. Its digest, which is no secret and need not be one, binds it to
// the request: what a shard's own token leads to, the shard judges.
func (r *Request) token(c cursor) string {
	raw, _ := json.Marshal(c) //nolint:errchkjson // strings and a number
	text := base64.RawURLEncoding.EncodeToString(raw)
	return versionPrefix + text + "." + r.seal(text)
}

// cursor returns what a continue token of the client holds.
func (r *Request) cursor(token string) (c cursor, v Vector, err error) {
	refuse := func(why string) error { return apierrors.NewBadRequest("invalid continue token: " + why) }
	text, ok := strings.CutPrefix(token, versionPrefix)
	text, sum, sealed := strings.Cut(text, ".")
	if !ok || !sealed {
		return c, v, refuse("not one of a list of all shards")
	}
	if sum != r.seal(text) {
		return c, v, refuse("it was changed, or issued for another request")
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return c, v, refuse("it was changed")
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, v, refuse("it was changed")
	}
	if v, err = ParseVersion(c.Version); err != nil {
		return c, v, refuse(err.Error())
	}
	return c, v, nil
}

// seal returns a digest of a token and of what is listed.
func (r *Request) seal(text string) string {
	sum := sha256.New()
	for _, part := range []string{r.Path, r.Query.Get("labelSelector"), r.Query.Get("fieldSelector"), r.Query.Get("shardSelector"), text} {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:sealBytes])
}
