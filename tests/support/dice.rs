//! Reproducible random numbers.

/// A fast generator (xorshift*). The seed must not be 0.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % most
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// Returns a number from 0 to 1.
    pub fn part(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1_000_000)).unwrap_or_default()) / 1e6
    }

    /// Returns an approximately normal number with a standard deviation of 1: a sum of twelve.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.part()).sum::<f64>() - 6.0
    }
}
