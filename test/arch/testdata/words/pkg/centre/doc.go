// Package centre is part of a fixture; centretest is below it.
package centre

// Key and others are written once here.
const (
	Key      = "example.kcp.io/key"
	Prefix   = "internal.shardplane.io/"
	Group    = "system:kcp:group"
	KeyInAll = Prefix + "key"
	Etcd     = "/registry"
	Users    = "system:"
	Admin    = "system:admin"
	Role     = "system:discovery"
	Bound    = "kubernetes.io/bound"
	Release  = "kubernetes.io"
	Header   = "X-Kcp-Internal-"
	URLs     = "/clusters/"
	Other    = "example.com/key"
	Text     = "the annotation example.kcp.io/key"
)
