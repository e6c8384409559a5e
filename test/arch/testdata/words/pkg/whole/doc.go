// Package whole is part of a fixture.
package whole

const (
	again    = "example.kcp.io/key"
	prefix   = `internal.shardplane.io/`
	group    = "system:kcp:group"
	etcd     = "/registry"
	users    = "system:"
	header   = "x-kcp-internal-"
	urls     = "/clusters/"
	admin    = "system:admin"
	role     = "system:discovery"
	viewer   = "system:info-viewer"
	binding  = "system:info-viewer"
	bound    = "kubernetes.io/bound"
	release  = "kubernetes.io"
	other    = "example.com/key"
	text     = "the annotation example.kcp.io/key"
	more     = prefix + "key"
)

var twice = map[string]string{"here.kcp.io": "here.kcp.io"}

const patience = 2

// grace tells
// whether there is time left.
func grace(settleTime int) (hides bool) {
	var encodings, hidesNothing int
	return settleTime > encodings+hidesNothing
}

// TellsWhether reports whether it says, whether or not.
func TellsWhether() bool { return grace(patience) }
