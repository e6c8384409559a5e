package merge

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const sealBytes = 12

// cursor is the content of a continue token: the position at which a paginated list continues. Any front-proxy can
// continue it.
type cursor struct {
	// Version is the version of the list, which determines its shards. A shard that is read at its latest version
	// has no position in it.
	Version string `json:"v"`
	// Shard is the number of the first shard of the next page, and Token the shard's own continue token.
	Shard uint32 `json:"s"`
	Token string `json:"t,omitempty"`
}

// token returns the continue token. A digest binds it to the request. It needs no secret, because each shard
// verifies its own token.
func (r *Request) token(c cursor) string {
	raw, _ := json.Marshal(c) //nolint:errchkjson // strings and a number
	text := base64.RawURLEncoding.EncodeToString(raw)
	return versionPrefix + text + "." + r.seal(text)
}

// cursor parses a continue token of the client.
func (r *Request) cursor(token string) (c cursor, v Vector, err error) {
	refuse := func(why string) error { return apierrors.NewBadRequest("invalid continue token: " + why) }
	text, ok := strings.CutPrefix(token, versionPrefix)
	text, sum, sealed := strings.Cut(text, ".")
	if !ok || !sealed {
		return c, v, refuse("not a token of a merged list")
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

// seal returns a digest of a token and its list request.
func (r *Request) seal(text string) string {
	sum := sha256.New()
	for _, part := range []string{r.Path, r.Query.Get("labelSelector"), r.Query.Get("fieldSelector"), r.Query.Get("shardSelector"), text} {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:sealBytes])
}
