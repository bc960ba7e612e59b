package session

import "testing"

// A client's words name a resource if they have its name as a word.
func TestWordsNameAResource(t *testing.T) {
	for _, c := range []struct {
		words, name string
		want        bool
	}{
		{"cluster cart: unknown policy", "cart", true},
		{"cart", "cart", true},
		{"Error adding/updating cluster(s) cart: bad, front: bad", "front", true},
		{"it is about 'cart'.", "cart", true},
		{"about cart.", "cart", true},
		{"cluster cart-v2: bad", "cart", false},
		{"cluster v2.cart: bad", "cart", false},
		{"cluster cart.shop.svc: bad", "cart", false},
		{"cluster cart.shop.svc: bad, cart: bad", "cart", true},
		{"cluster outbound|80||cart.shop: bad", "cart.shop", false},
		{"cluster outbound|80||cart.shop: bad", "outbound|80||cart.shop", true},
		{"xdstp://a/t/cart is bad", "cart", false},
		{"xdstp://a/t/cart is bad", "xdstp://a/t/cart", true},
		{"a cartridge", "cart", false},
		{"größer", "er", false},
		{"cart:8080 is bad", "cart", false},
		{"nothing", "cart", false},
		{"nothing", "", false},
		{"", "cart", false},
	} {
		if is := NamesResource(c.words, c.name); is != c.want {
			t.Errorf("that %q names %q is %v", c.words, c.name, is)
		}
	}
}
