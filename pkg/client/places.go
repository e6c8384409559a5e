package client

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// places say which members of a Union have the objects of a logical cluster. Nearly all have
// theirs on one shard, and of these there is one entry, however many objects they have; only of
// what is on several, as while it moves, each object has one.
type places[T Object] struct {
	// of returns the objects that a member has in a logical cluster.
	of func(member uint32, cluster logicalcluster.Name) *objects[T]

	mu      sync.RWMutex
	single  map[logicalcluster.Name]onlyPlace[T]
	several map[logicalcluster.Name]*spread
}

// onlyPlace is the only member that has objects of a logical cluster, and these, so that they are
// not looked up there again.
type onlyPlace[T Object] struct {
	in              *objects[T]
	member, objects uint32
}

// spread is a logical cluster of which several members have objects.
type spread struct {
	// objects are how many each member has.
	objects map[uint32]uint32
	// copies are the members that have an object. The last one came last, and counts.
	copies map[local][]uint32
}

func newPlaces[T Object](of func(member uint32, cluster logicalcluster.Name) *objects[T]) places[T] {
	return places[T]{of: of, single: map[logicalcluster.Name]onlyPlace[T]{}, several: map[logicalcluster.Name]*spread{}}
}

// add notes that a member has got an object, and returns which one's counted before, if one's
// did.
func (p *places[T]) add(cluster logicalcluster.Name, l local, member uint32) (before uint32, hidden bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.several[cluster]
	if s == nil {
		one, known := p.single[cluster]
		if !known {
			one = onlyPlace[T]{in: p.of(member, cluster), member: member}
		}
		if one.member == member {
			one.objects++
			p.single[cluster] = one
			return 0, false
		}
		s = &spread{objects: map[uint32]uint32{one.member: one.objects}, copies: make(map[local][]uint32, one.objects)}
		for l := range one.in.all {
			s.copies[l] = []uint32{one.member}
		}
		delete(p.single, cluster)
		p.several[cluster] = s
	}
	s.objects[member]++
	others := s.copies[l]
	s.copies[l] = append(others, member)
	if len(others) == 0 {
		return 0, false
	}
	return others[len(others)-1], true
}

// renew has the key of a logical cluster be that of the newest object, and not keep an old one
// in memory. It reports whether the member's copy of an object counts.
func (p *places[T]) renew(cluster logicalcluster.Name, l local, member uint32) (counts bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.several[cluster]; s != nil {
		copies := s.copies[l]
		return len(copies) > 0 && copies[len(copies)-1] == member
	}
	one := p.single[cluster]
	p.single[cluster] = one // with the key that is given
	return true
}

// remove notes that a member has an object no more. It reports whether its copy had counted, and
// returns which one's counts now, if one's does.
func (p *places[T]) remove(cluster logicalcluster.Name, l local, member uint32) (counted bool, now uint32, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.several[cluster]
	if s == nil {
		one := p.single[cluster]
		if one.objects--; one.objects == 0 {
			delete(p.single, cluster)
		} else {
			p.single[cluster] = one
		}
		return true, 0, false
	}
	copies := s.copies[l]
	counted = len(copies) > 0 && copies[len(copies)-1] == member
	copies = slices.DeleteFunc(copies, func(other uint32) bool { return other == member })
	if left = len(copies) > 0; left {
		s.copies[l], now = copies, copies[len(copies)-1]
	} else {
		delete(s.copies, l)
	}
	if s.objects[member]--; s.objects[member] == 0 {
		delete(s.objects, member)
	}
	if len(s.objects) == 1 {
		for last, objects := range s.objects {
			p.single[cluster] = onlyPlace[T]{in: p.of(last, cluster), member: last, objects: objects}
		}
		delete(p.several, cluster)
	}
	return counted, now, left
}

// superseded reports whether another member's copy of an object counts, under the lock.
func (p *places[T]) superseded(cluster logicalcluster.Name, l local, member uint32) bool {
	s := p.several[cluster]
	if s == nil {
		return false
	}
	copies := s.copies[l]
	return len(copies) > 0 && copies[len(copies)-1] != member
}

// members returns the members that have objects of a logical cluster, under the lock, those with the
// most objects first.
func (p *places[T]) members(cluster logicalcluster.Name) []uint32 {
	if one, ok := p.single[cluster]; ok {
		return []uint32{one.member}
	}
	s := p.several[cluster]
	if s == nil {
		return nil
	}
	members := make([]uint32, 0, len(s.objects))
	for member := range s.objects {
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b uint32) int { return int(s.objects[b]) - int(s.objects[a]) })
	return members
}
